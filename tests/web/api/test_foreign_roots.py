"""The dashboard of a root that weightslab wrote."""

from tests import WEIGHTSLAB
from tests.experiments.test_foreign import MADE, content
from tests.web.api.client import Api

PATHS = (
    *("/store", "/runs", "/lineage", "/storage"),
    *(f"/runs/{MADE}", f"/runs/{MADE}/checkpoints", f"/runs/{MADE}/metrics"),
    *(f"/checkpoints/{MADE}/200", f"/checkpoints/{MADE}/200/record"),
    f"/compare?before={MADE}@100&after={MADE}@200",
    f"/tensor?ref={MADE}@200&name=model_state_dict.0.weight",
)


def test_every_view_answers_and_writes_nothing():
    before = content(WEIGHTSLAB)
    api = Api(WEIGHTSLAB, allow_edit=True)
    for path in PATHS:
        assert api(path), path
    assert [run["name"] for run in api("/runs")["runs"]] == ["wl-jade-tide"]
    assert api(f"/runs/{MADE}")["hyperparameters"] == {"batch": 8, "lr": 0.001}
    assert api(f"/checkpoints/{MADE}/100")["step"] == 100
    assert api(f"/checkpoints/{MADE}/100/record")["lines"][-1]["name"] == "digest"
    api.send(f"/checkpoints/{MADE}/200/tags", {"tag": "paper"}, status=403)
    assert content(WEIGHTSLAB) == before
