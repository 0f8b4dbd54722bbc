"""Text to token ids and back, and a character tokenizer in Hugging Face format for the built-in tasks."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ostinato.errors import DataError
from ostinato.protocols import GroupRequest

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"


def character_tokenizer() -> Any:
    """One token a character: printable ASCII and the newline, plus pad (id 0), eos (1) and unknown (2)."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNKNOWN, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def encode_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of a prompt the model shall answer.

    With a chat template the prompt becomes a user message and the assistant's turn is opened; without one it is encoded
    as it stands, no special tokens added, nor read into it: "<eos>" is five characters then. Raises `DataError` for
    an empty prompt or characters the tokenizer lacks.
    """
    if tokenizer.chat_template:
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return _encode(tokenizer, text, prompt, special_tokens=True)
    return _encode(tokenizer, prompt, prompt)


def encode_request(tokenizer: Any, request: GroupRequest, context_tokens: int) -> list[int]:
    """Token ids of the prompt of `request`. Raises `DataError` as above, and where it and the completion together are
    longer than `context_tokens`."""
    prompt, new = encode_prompt(tokenizer, request.task.prompt), request.sampling.max_new_tokens
    if len(prompt) + new > context_tokens:
        raise DataError(
            f"prompt {request.task.prompt[:40]!r}: {len(prompt)} tokens and max_new_tokens {new} "
            f"exceed the model's context of {context_tokens}"
        )
    return prompt


def encode_answer(tokenizer: Any, answer: str) -> list[int]:
    """Token ids of a completion: the answer and the end-of-sequence token. Raises `DataError` as above."""
    return [*_encode(tokenizer, answer, answer), tokenizer.eos_token_id]


def decode_text(tokenizer: Any, tokens: Sequence[int] | NDArray[np.int32]) -> str:
    """The text of token ids, special tokens left out."""
    text: str = tokenizer.decode(list(map(int, tokens)), skip_special_tokens=True)
    return text


def pad_token_id(tokenizer: Any) -> int:
    """The pad token, or the end-of-sequence token of a tokenizer that has none (padding is always masked)."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


def _encode(tokenizer: Any, text: str, shown: str, *, special_tokens: bool = False) -> list[int]:
    """`special_tokens`: whether the names of special tokens in the text, a template's, stand for them."""
    split = not special_tokens
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split)
    if not tokens:
        raise DataError(f"text {shown[:60]!r} has no tokens, expected at least one")
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in tokens:
        raise DataError(f"text {shown[:60]!r} has characters the tokenizer does not know")
    return tokens
