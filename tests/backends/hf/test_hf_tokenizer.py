import pytest
import transformers
from hypothesis import example, given
from hypothesis import strategies as st

from ostinato.backends.hf.tokenizer import CHARACTERS, character_tokenizer, decode_text, encode_answer, encode_prompt
from ostinato.errors import DataError

TOKENIZER = character_tokenizer()


@given(st.text(alphabet=CHARACTERS, min_size=1))
@example("<eos>")
@example("1<pad>2<unk>")
def test_decode_text_inverts_encode_prompt(text):
    tokens = encode_prompt(TOKENIZER, text)
    assert len(tokens) == len(text)
    assert decode_text(TOKENIZER, tokens) == text


def test_character_tokenizer_numbers_special_tokens_then_digits():
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id) == (0, 1, 2)
    assert encode_prompt(TOKENIZER, "029=") == [3, 5, 12, TOKENIZER.convert_tokens_to_ids("=")]
    assert len(TOKENIZER) == 3 + 96  # printable ASCII and the newline


def test_encode_answer_when_it_names_special_tokens_keeps_them_as_text():
    tokens = encode_answer(TOKENIZER, "<eos>3")
    assert tokens.count(TOKENIZER.eos_token_id) == 1 and tokens[-1] == TOKENIZER.eos_token_id
    assert decode_text(TOKENIZER, tokens) == "<eos>3"


def test_encode_answer_ends_with_eos_which_decode_leaves_out():
    tokens = encode_answer(TOKENIZER, "12")
    assert tokens == [4, 5, 1]
    assert decode_text(TOKENIZER, [*tokens, 0, 0]) == "12"


def test_encode_prompt_opens_the_assistant_turn_when_there_is_a_chat_template():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    assert decode_text(tokenizer, encode_prompt(tokenizer, "1+1")) == "<user>1+1<assistant>"


def test_saved_tokenizer_gives_the_same_ids(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Sort 3,1:\n2 -> (x)?"
    assert encode_prompt(loaded, text) == encode_prompt(TOKENIZER, text)
    assert decode_text(loaded, encode_prompt(loaded, text)) == text
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 1)


@pytest.mark.parametrize(("text", "message"), [("", "no tokens"), ("caf\u00e9", "does not know")])
def test_encode_prompt_refuses_text_it_would_lose(text, message):
    with pytest.raises(DataError, match=message):
        encode_prompt(TOKENIZER, text)
