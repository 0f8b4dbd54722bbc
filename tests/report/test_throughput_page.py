"""A run in real time tells on its page who was busy and what went wrong."""

import json

from ostinato.loop.faults import FAULTS_FILE, FaultLog
from ostinato.report import write_report


def test_page_when_a_run_has_throughput_and_faults_shows_both(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"settings": {}}))
    assert "Throughput" not in write_report(tmp_path).read_text()
    rates = {"rollouts": 12, "tokens_per_s": 345.0, "busy_share": 0.91}
    found = {
        "elapsed_s": 60.0,
        "generators": [rates, {**rates, "busy_share": 0.5}],
        "trainer": {**rates, "tokens_per_s": 1234.0},
        "mu_measured": 5.28,
        "gamma_measured": 0.637,
        "runtime": {"transfer.weights_s": 0.25},
    }
    (tmp_path / "throughput.json").write_text(json.dumps(found))
    log = FaultLog(tmp_path / FAULTS_FILE)
    log.record("generator_died", generator=1, reissued_groups=3, why="<killed>")
    page = write_report(tmp_path).read_text()
    for text in ("generator 1", "91.0 %", "50.0 %", "1,234", "5.28", "0.637", "transfer.weights_s", "generator_died"):
        assert text in page, text
    assert "<tr><td>reissued_groups</td><td><code>3</code></td></tr>" in page
    assert "<killed>" not in page
