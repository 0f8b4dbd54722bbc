"""The card of a replayed run, in a local directory: what `push_to_hub` would upload."""

import pytest

pytest.importorskip("trl")

from huggingface_hub import ModelCard
from replaying import trainer

from ostinato.buffer import MaxStaleness, Prioritized
from ostinato.errors import ConfigError
from ostinato.integrations.trl import ReplayConfig
from ostinato.integrations.trl.card import add_replay_to_card


def test_card_when_a_checkpoint_is_saved_says_what_was_replayed_and_how(model_directory, tmp_path):
    replay = ReplayConfig(
        capacity=64, uses=2, sampler=Prioritized("advantage", 0.5), retention=[MaxStaleness(9)], loss="asymre"
    )
    made = trainer(model_directory, tmp_path, replay, save_strategy="steps", save_steps=2, max_steps=2)
    made.train()
    card = ModelCard.load(tmp_path / "README.md")
    assert {"trl", "grpo", "experience-replay", "ostinato"} <= set(card.data.tags)
    for row in ("| `capacity` | 64 |", "| `uses` | 2 |", "MaxStaleness(n=9)", "| `loss` | asymre |", "Prioritized("):
        assert row in card.text, row
    assert "| None |" not in card.text and "capacity_bytes" not in card.text  # what nobody set is left out
    assert card.text.index("### Replay") < card.text.index("### Framework versions") < card.text.index("- Ostinato: ")
    before = (tmp_path / "README.md").read_text()
    add_replay_to_card(tmp_path / "README.md", replay)
    assert (tmp_path / "README.md").read_text() == before
    made.create_model_card(model_name="mine", dataset_name="sorted/digits", tags="mine")  # as push_to_hub does
    again = ModelCard.load(tmp_path / "README.md")
    assert "mine" in again.data.tags and again.text.count("### Replay") == 1 and "# Model Card for mine" in again.text


def test_card_that_is_not_there_and_settings_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "README.md"
    with pytest.raises(ConfigError, match=r"README.md is no model card: call create_model_card first"):
        add_replay_to_card(path, {"capacity": 8})
    path.write_text("# Model Card for m\n")
    with pytest.raises(ConfigError, match="settings is 3, expected a ReplayConfig or a dict"):
        add_replay_to_card(path, 3)
    assert path.read_text() == "# Model Card for m\n"


def test_card_when_settings_are_a_mapping_shows_them(tmp_path):
    (tmp_path / "README.md").write_text("---\nlibrary_name: transformers\n---\n\n# Model Card for m\n")
    add_replay_to_card(tmp_path / "README.md", {"capacity": 2048, "uses": 3, "sampler": None, "note": "a|b"})
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.tags == ["experience-replay", "ostinato"]
    assert "| `capacity` | 2048 |\n| `uses` | 3 |\n| `note` | a\\|b |" in card.text
