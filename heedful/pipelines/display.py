"""Pipelines and their results as notebooks show them: text and HTML without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from heedful.pipelines.text_splitting import Translation

_KINDS = {
    "translator": "translator",
    "causal_lm": "language model",
    "encoder": "encoder of text",
    "vision": "encoder of images",
}


def html_table(rows: Sequence[Sequence[str]], *, header: bool = False) -> str:
    """Return rows of cells as a table in HTML.

    Args:
        rows: cells, as text.
        header: flag of a first row of names.
    """
    lines = []
    for number, row in enumerate(rows):
        tag = "th" if header and number == 0 else "td"
        cells = "".join(f'<{tag} style="text-align:left">{escape(cell)}</{tag}>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def translation_table(translation: Translation) -> str:
    """Return a translation with its scores and word alignment as a table in HTML.

    Args:
        translation: translation, with the next-best ones.
    """
    rows = [("translation", "log-probability")]
    rows += [(str(each), f"{each.score:.2f}") for each in translation.n_best]
    if translation.alignment is not None:
        words, source = translation.alignment.target_words, translation.alignment.source_words
        rows += [("word", "from")]
        rows += [
            (words[target], f"{source[place]} ({weight:.2f})")
            for place, target, weight in translation.alignment.links
        ]
    return html_table(rows, header=True)


class Shown:
    """Base of pipelines, which show what they hold and what they do.

    Attributes:
        name: directory or name that it was loaded from; empty for a model in memory.
    """

    name = ""
    verbs: ClassVar[tuple[str, ...]] = ()
    """Methods that do what the model is for."""

    def facts(self) -> dict[str, str]:
        """Return what there is to know at a glance, by name."""
        from heedful.models.build import build_on_meta  # 20 ms, only where somebody looks

        own: Any = self
        # Nothing is computed or made anew, and no changed model refused, by looking.
        held = own._held[0] if isinstance(own._held, tuple) else own._held
        engine = held.last
        spec = engine.spec
        size = sum(each.numel() for each in build_on_meta(spec).parameters())
        precision = own.precision
        return {
            "model": self.name or "in memory",
            "kind": _KINDS[spec.kind],
            "parameters": f"{size:,}",
            "width": str(spec.width),
            "layers": ", ".join(f"{len(s.blocks)} {name}" for name, s in spec.stacks().items()),
            "precision": "float32, by the definition"
            if precision is None
            else precision.describe(),
            "device": str(next(engine.parameters()).device),
            "does": ", ".join(self.verbs),
        }

    def __repr__(self) -> str:
        facts = self.facts()
        shown = ("kind", "parameters", "device", "does")
        parts = ", ".join(f"{name}: {facts[name]}" for name in shown)
        return f"<{type(self).__name__} {facts['model']}; {parts}>"

    def _repr_html_(self) -> str:
        return html_table(list(self.facts().items()))

    def __getattr__(self, name: str) -> Any:
        # Whoever loaded another kind of model than thought reads here what this one does.
        verbs = ", ".join(self.verbs)
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}; this model can {verbs}", name=name, obj=self
        )
