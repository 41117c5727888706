"""Labelled brackets of constituency trees: PARSEVAL by the rules of the program EVALB.

Black 1991 (https://aclanthology.org/H91-1060); the rules are those of COLLINS.prm, which comes with
EVALB (Sekine and Collins 1997). Trees are written as (S (NP (NN Rain)) (VP (VBZ falls))).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from heedful.errors import DataError
from heedful.evaluate.registered_metric import CountedF1

_TOKENS = re.compile(r"[()]|[^\s()]+")
_NOTHING = "-NONE-"  # the tag of traces, which are not written in the text
_ROOTS = ("", "TOP", "ROOT", "S1")  # EVALB deletes TOP; other treebanks have other names for it
# The tags whose words COLLINS.prm deletes.
_PUNCTUATION = frozenset((",", ":", "``", "''", "."))
_EQUAL = {"PRT": "ADVP"}


@dataclass(frozen=True)
class Tree:
    """A constituent, or a word under its tag.

    Args:
        label: label or tag, without what follows a hyphen or an equals sign, as `SBJ` in NP-SBJ.
        children: constituents within it, none for a word.
        word: the word; None for a constituent.
    """

    label: str
    children: list[Tree] = field(default_factory=list)
    word: str | None = None

    def leaves(self) -> Iterator[Tree]:
        """Yield the words of the tree in their order."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def __str__(self) -> str:
        inside = [self.word] if self.word is not None else map(str, self.children)
        return f"({' '.join([self.label, *inside])})"


def read_tree(text: str) -> Tree:
    """Read a tree; traces and constituents that hold nothing else are left out.

    Args:
        text: one bracketed tree.

    Raises:
        DataError: when brackets do not match, or a word has no tag of its own.
    """
    stack = [Tree("")]
    tokens = _TOKENS.findall(text)
    for place, token in enumerate(tokens):
        if token == "(":
            named = place + 1 < len(tokens) and tokens[place + 1] not in "()"
            stack.append(Tree(_base_label(tokens[place + 1]) if named else ""))
        elif token == ")":
            if len(stack) == 1:
                raise _no_tree("A bracket is closed that was not opened", text)
            tree = stack.pop()
            if tree.label != _NOTHING and (tree.children or tree.word is not None):
                stack[-1].children.append(tree)
        elif place == 0 or tokens[place - 1] != "(":
            tagged = len(stack) > 1 and not stack[-1].children and stack[-1].word is None
            if not tagged:
                raise _no_tree(f"The word {token!r} has no tag of its own", text)
            stack[-1] = Tree(stack[-1].label, word=token)
    if len(stack) > 1:
        raise _no_tree(f"{len(stack) - 1} brackets are not closed", text)
    if len(stack[0].children) != 1:
        raise _no_tree(f"There are {len(stack[0].children)} trees instead of one", text)
    return stack[0].children[0]


def brackets(tree: Tree, deleted: Sequence[bool]) -> Counter[tuple[str, int, int]]:
    """Count the labelled brackets of a tree: label, first word and the word after the last.

    Args:
        tree: tree, whose root and tags of words do not count.
        deleted: flag for each word that does not count, as punctuation; brackets around no other
            words do not count either.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    kept = [0]  # number of counted words before each word
    for gone in deleted:
        kept.append(kept[-1] + (not gone))

    def visit(node: Tree, start: int) -> int:
        if node.word is not None:
            return start + 1
        end = start
        for child in node.children:
            end = visit(child, end)
        if node.label not in _ROOTS and kept[start] < kept[end]:
            found[_EQUAL.get(node.label, node.label), kept[start], kept[end]] += 1
        return end

    visit(tree, 0)
    return found


class BracketF1(CountedF1):
    """F1 of labelled brackets over all sentences, 0 to 100.

    An output that is no tree, or has other words than its reference, has no bracket right. EVALB
    leaves such sentences out.
    """

    name = "bracket_f1"

    def statistics(self, output: str, references: Sequence[Any]) -> Sequence[float]:
        """Return the numbers of right brackets, of those in the output, and in the reference.

        Raises:
            DataError: when the reference is no tree.
        """
        right = read_tree(references[0])
        leaves = list(right.leaves())
        # The reference's tags decide, so that a wrong tag cannot take words out of the count.
        deleted = [leaf.label in _PUNCTUATION for leaf in leaves]
        wanted = brackets(right, deleted)
        try:
            tree = read_tree(output)
        except DataError:
            return 0, 0, wanted.total()
        if [leaf.word for leaf in tree.leaves()] != [leaf.word for leaf in leaves]:
            return 0, 0, wanted.total()
        found = brackets(tree, deleted)
        return (found & wanted).total(), found.total(), wanted.total()


def tree_code(tree: Tree) -> str:
    """Return a tree as labels in the order of its brackets and a number for each word.

    The number counts the constituents that end behind the word, so that (S (NP (NN Rain)) (VP (VBZ
    falls))) is `S NP 1 VP 2`. Words and tags are left out, as in Vinyals 2015 (arXiv 1412.7449),
    whose closing brackets cost a token each.

    Args:
        tree: tree with a constituent around all words.
    """
    symbols: list[str] = []

    def visit(node: Tree, closing: int) -> None:
        if node.word is not None:
            symbols.append(str(closing))
            return
        symbols.append(node.label)
        for child in node.children:
            visit(child, closing + 1 if child is node.children[-1] else 0)

    visit(tree, 0)
    return " ".join(symbols)


def coded_tree(code: str, words: Sequence[str]) -> Tree:
    """Return the tree of a code and its words, which get the tag X.

    Args:
        code: code as `tree_code` writes it.
        words: words of the sentence.

    Raises:
        DataError: when the code is none of a tree over so many words.
    """
    stack = [Tree("")]
    remaining = list(reversed(words))
    for symbol in code.split():
        if not symbol.isdecimal():
            if len(stack) == 1 and stack[0].children:
                raise _no_tree("The code goes on behind its tree", code)
            stack.append(Tree(symbol))
            continue
        if not remaining or int(symbol) >= len(stack) or len(stack) == 1:
            raise _no_tree(f"The code has no place for {symbol}", code)
        stack[-1].children.append(Tree("X", word=remaining.pop()))
        for _ in range(int(symbol)):
            tree = stack.pop()
            stack[-1].children.append(tree)
    if remaining or len(stack) > 1 or not stack[0].children:
        raise _no_tree(f"The code ends before its tree of {len(words)} words", code)
    return stack[0].children[0]


def _base_label(label: str) -> str:
    # -LRB- and -NONE- are whole labels.
    return label if label.startswith("-") else re.split("[-=]", label)[0] or label


def _no_tree(problem: str, text: str) -> DataError:
    shown = text if len(text) <= 80 else f"{text[:80]}…"
    return DataError(problem, where=shown, remedy="Give trees such as (S (NP (NN Rain)) …)")
