"""Hugging Face backend: any causal language model of transformers generates and trains.

Import from the modules; importing this package needs torch and transformers only once one of them is touched.
"""
