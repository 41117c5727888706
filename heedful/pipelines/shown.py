"""How pipelines show themselves: facts at a glance, in a terminal and in a notebook."""

from __future__ import annotations

from html import escape
from typing import Any, ClassVar

_KINDS = {
    "translator": "translator",
    "causal_lm": "language model",
    "encoder": "encoder of text",
    "vision": "encoder of images",
}


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
        parts = ", ".join(f"{name}: {facts[name]}" for name in shown if name in facts)
        return f"<{type(self).__name__} {facts['model']}; {parts}>"

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><td>{name}</td><td>{escape(fact)}</td></tr>"
            for name, fact in self.facts().items()
        )
        return f"<table>{''.join(rows)}</table>"

    def __getattr__(self, name: str) -> Any:
        # Whoever loaded another kind of model than thought reads here what this one does.
        if not vars(self):  # a copy in the making has no verbs yet
            raise AttributeError(name)
        verbs = ", ".join(self.verbs)
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}; this model can {verbs}", name=name, obj=self
        )
