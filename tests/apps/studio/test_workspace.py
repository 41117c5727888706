"""The places that a studio shows."""

from __future__ import annotations

from heedful.apps.studio.workspace import WorkspaceDirectory
from heedful.pretrained.catalogue import models_at_hand


def test_models_at_hand_show_how_they_were_trained() -> None:
    """Their figures come with them, without paths of the machine they were made on."""
    for model in models_at_hand().values():
        place = WorkspaceDirectory(model.name, model.path)
        assert place.log is not None
        assert len(place.log.curve("loss")[0]) > 50
        assert len(place.log.curve("loss", "validation")[0]) > 1
        assert '"/' not in (model.path / "config.toml").read_text(encoding="utf-8")
        card = model.card()
        if card.task not in ("images", "sounds"):
            assert place.plain()["examples"][0]["text"] == card.examples[0].text
        if card.task not in ("images", "sounds", "tokens"):
            assert len(place.sentences()) >= 10
