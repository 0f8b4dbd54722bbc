"""The built-in tokenizer of one token a character, reading only: what `--tokenizer characters` needs of it."""

from __future__ import annotations

import string
from collections.abc import Sequence

SPECIAL_TOKENS = 3
"""Pad, end of sequence, unknown: no text."""

ALPHABET = string.digits + string.ascii_letters + string.punctuation + " \n"
"""As in `ostinato.backends.hf.tokenizer`, which cannot be imported without its libraries."""


class CharacterReader:
    """Turns ids of the character tokenizer into text, without transformers."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; special tokens and ids that the tokenizer does not have are left out."""
        return "".join(
            ALPHABET[token - SPECIAL_TOKENS] for token in tokens if 0 <= token - SPECIAL_TOKENS < len(ALPHABET)
        )
