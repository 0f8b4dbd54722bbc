"""What has no log-probs is refused in one line: other shapes, other types, numbers that are none."""

import math

import pytest
import torch

from ostinato.errors import ConfigError, DataError
from ostinato.logprobs import linear_logprobs, selected_logprobs


@pytest.mark.parametrize(
    ("tokens", "temperature", "error", "message"),
    [
        ((2, 3), 0, ConfigError, "temperature must be above 0, got 0"),
        ((2, 3), math.nan, ConfigError, "temperature must be a finite number, got nan"),
        ((2, 3), math.inf, ConfigError, "temperature must be a finite number, got inf"),
        ((2, 3), 10**400, ConfigError, "temperature must be a finite number, got an integer of 1329 bits"),
        ((2, 3), 1e-45, ConfigError, "temperature must be between 1e-30 and"),
        ((2, 3), None, ConfigError, "temperature must be a finite number, got None"),
        ((2, 3), [1.0, 2.0], ConfigError, r"temperature must be a finite number, got \[1.0, 2.0\]"),
        ((2, 3), torch.ones(2) > 0, DataError, "temperature is torch.bool, expected numbers"),
        ((2, 3), torch.ones(2, 1), DataError, r"temperature has shape \(2, 1\), expected \(2,\)"),
        ((2, 3), torch.ones(1), DataError, r"temperature has shape \(1,\), expected \(2,\)"),
        ((2, 2), 1.0, DataError, r"tokens have shape \(2, 2\), expected \(2, 3\) of the logits"),
    ],
)
def test_selected_logprobs_refuse_what_has_no_log_probs(tokens, temperature, error, message):
    with pytest.raises(error, match=message):
        selected_logprobs(torch.zeros(2, 3, 5), torch.zeros(tokens, dtype=torch.int64), temperature)


@pytest.mark.parametrize(
    ("logits", "tokens", "message"),
    [
        (torch.zeros(2, 3, 5).numpy(), torch.zeros(2, 3).long(), "logits: expected a tensor, got ndarray"),
        (torch.zeros(2, 3, 5).long(), torch.zeros(2, 3).long(), "logits: expected floating-point numbers, got"),
        (torch.zeros(2, 3, 0), torch.zeros(2, 3).long(), r"logits have shape \(2, 3, 0\): the vocabulary is empty"),
        (torch.zeros(2, 3, 5), torch.zeros(2, 3), "tokens are torch.float32, expected torch.int64"),
        (torch.zeros(2, 3, 5), [[0, 0, 0]] * 2, "tokens: expected a tensor, got list"),
    ],
)
def test_selected_logprobs_of_other_types_are_refused(logits, tokens, message) -> None:
    with pytest.raises(DataError, match=message):
        selected_logprobs(logits, tokens, 1.0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"temperature": 0.0}, ConfigError, "temperature must be above 0, got 0"),
        ({"temperature": torch.ones(2)}, DataError, r"temperature has shape \(2,\), expected \(3,\)"),
        ({"tokens": torch.zeros(3, 4, dtype=torch.int64)}, DataError, r"tokens have shape \(3, 4\), expected \(3, 5\)"),
        ({"weight": torch.zeros(5, 7)}, DataError, r"weight has shape \(5, 7\), expected \(vocabulary, 8\)"),
        ({"bias": torch.zeros(9)}, DataError, r"bias has shape \(9,\), expected \(53,\)"),
        ({"mask": torch.ones(3)}, DataError, r"mask has shape \(3,\), expected \(3, 5\)"),
        ({"mask": torch.ones(3, 5, dtype=torch.int64)}, DataError, "mask is torch.int64, expected torch.bool"),
        ({"mask": torch.ones(3, 5).numpy() > 0}, DataError, "mask: expected a tensor, got ndarray"),
        ({"hidden": torch.ones(3, 5, 8).long()}, DataError, "hidden: expected floating-point numbers, got torch.int64"),
        ({"hidden": torch.ones(8), "tokens": torch.tensor(0)}, DataError, r"hidden has shape \(8,\), expected"),
        ({"weight": torch.ones(53, 8).long()}, DataError, "weight: expected floating-point numbers, got torch.int64"),
        ({"weight": torch.zeros(0, 8)}, DataError, r"weight has shape \(0, 8\), expected \(vocabulary, 8\)"),
        ({"bias": torch.zeros(53).long()}, DataError, "bias: expected floating-point numbers, got torch.int64"),
        ({"tokens": torch.zeros(3, 5)}, DataError, "tokens are torch.float32, expected torch.int64"),
        ({"scale": math.nan}, ConfigError, "scale must be a finite number, got nan"),
        ({"scale": -1e39}, ConfigError, r"scale must be between -1e\+30 and 1e\+30, got -1e\+39"),
        ({"softcap": 0.0}, ConfigError, "softcap must be above 0, got 0"),
        ({"softcap": math.inf}, ConfigError, "softcap must be a finite number, got inf"),
        ({"softcap": 1e39}, ConfigError, r"softcap must be between 1e-30 and 1e\+30, got 1e\+39"),
        ({"block_rows": 1.5}, ConfigError, "block_rows must be an integer, got 1.5"),
        ({"block_rows": True}, ConfigError, "block_rows must be an integer, got True"),
        ({"block_rows": 0}, ConfigError, "block_rows must be at least 1, got 0"),
    ],
)
def test_linear_logprobs_refuse_what_does_not_fit(changes, error, message) -> None:
    hidden, weight, tokens = torch.zeros(3, 5, 8), torch.zeros(53, 8), torch.zeros(3, 5, dtype=torch.int64)
    arguments = {"hidden": hidden, "weight": weight, "tokens": tokens, "temperature": 1.0} | changes
    with pytest.raises(error, match=message):
        linear_logprobs(**arguments)
