"""Foreign names are translated here and nowhere else: one package a trainer."""
