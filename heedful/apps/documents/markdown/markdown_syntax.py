"""The syntax of Markdown: CommonMark with extensions of GitHub, Pandoc, MkDocs, Hugo and others.

Marks that a translation must not change (templates, attributes, citations, names of emoji) are
masked before the text is parsed: each of their characters is replaced by a punctuation mark, so
that they do not disturb the parsing of links, emphasis and code around them. Masks keep all
offsets.
"""

from __future__ import annotations

import re
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.ruler import RuleOptionsType
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline

SHOWN = "\u2e19"
"""Mask of marks that a translator reads as a word, such as {{ page.title }}."""
UNSEEN = "\u2e0e"
"""Mask of marks that a translator does not read, such as {#id} or [^1]."""

SOURCE = "source"
"""Key of the parser's environment for the text without masks."""
ENDS = "ends"
"""Key of the parser's environment for the ends of inline constructs, by the text that contains
them, their kind and their start."""

_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s{}\"'`]+)"
_ATTRIBUTE = rf"(?:[#.][\w:./-]+|[\w:-]+={_VALUE})"
_ATTRIBUTES = (
    rf"\{{:[^{{}}\n`]*\}}|\{{=\w+\}}|\{{-\}}|\{{ ?{_ATTRIBUTE}(?: +(?:{_ATTRIBUTE}|[\w-]+))* ?\}}"
)
# Marks that look like tags but are not HTML: <Release.Date />, <Note body={"words"} />,
# <user_name>.
_COMPONENT = (
    r"</?(?:[A-Z]\w*(?:\.\w+)+|[A-Za-z][A-Za-z\d-]*_[\w-]*)(?:\s[^<>\n`]*)?/?>"
    r"|<[A-Z]\w*\s(?:[^<>\n`{}]*\{[^\n`{}]*\})+[^<>\n`{}]*/?>"
)
_MASKS = re.compile(
    # The parser itself handles the mark of a footnote's text.
    r"(?P<footnote>^[ \t>]*\[\^[^\]\s]+\]:)"
    r"|(?P<shown>\{\{\{[^{}\n`]*\}\}\}|\$?\{\{(?![<%{])(?:[^{}\n`]|\{[^{}\n`]*\})*\}\}"
    # Hugo's shortcodes and Liquid's tags may run over several lines, but not over a blank one.
    r"|\{\{(?P<angle>[<%])(?:(?!\n\s*\n|[>%]\}\})[^`]|`[^`\n]*`)*[>%]\}\}"
    r"|\{%-? *(?!if|unless|else|elsif|end|for|case|when|raw|comment|assign|capture)"
    r"(?:(?!\n\s*\n|%\})[^`])*%\}"
    r"|!?\[\[[^\[\]\n]+\]\](?![(\[])"  # links of wikis
    r"|\+\+[\w\"'-]+(?:\+[\w\"'-]+)*\+\+"  # keys
    r"|\\@ref\([^()\s]*\)|\\[A-Za-z]+\*?(?:\[[^\[\]\n]*\])?(?:\{[^{}\n`]*\})+"  # TeX
    r"|\\\\\([^\n`]+?\\\\\)|\\\\\[[^`]+?\\\\\]|\\\([^()\n`]*[\\^_=][^()\n`]*\\\)"
    r"|[^\W_]*(?<![~\\])~[^\s~`]+~(?!~)[^\W_]*|[^\W_]+\^[^\s^`\[\]]+\^[^\W_]*"  # H~2~O, 2^10^
    # People, packages, citations.
    r"|(?<![\w@./#-])\\?@[A-Za-z0-9][A-Za-z0-9_-]*(?:[/.:][A-Za-z0-9_-]+)*)"
    r"|(?P<unseen>\{%(?:(?!\n\s*\n|%\})[^`])*%\}"
    rf"|\{{/\*[^\n`]*?\*/\}}|\{{# [^{{}}\n]*\}}|\{{##[^{{}}\n]*\}}|{_ATTRIBUTES}|{_COMPONENT}"
    r"|\{[\w:.+-]+\}(?=`)|:[\w:.+-]+:(?=`[^`])"  # roles of MyST and Sphinx
    r"|\{(?P<critic>\+\+|--|~~|==|>>)[^{}\n`]*?\}"
    r"|\[\^[^\]\s]+\]"
    r"|\[![A-Za-z][\w-]*(?:[^\[\]\n]|\[[^\[\]\n]*\])*\](?:[+-](?=\s))?(?:\([^()\n]*\))?"
    r"|\[(?:[^\[\]\n@`]*[\s;-])?@[\w{][^\[\]\n`]*\](?![(\[:])|\(ref:[\w-]+\)"
    r"|(?<![\w:./]):[A-Za-z0-9_+-]*[A-Za-z0-9]:(?![\w:/`]))",
    re.MULTILINE,
)
PARAMETER = re.compile(
    r"(?P<name>\b(?:title|caption|alt)\s*=\s*)(?:\"([^\"{}<>\n]+)\"|'([^'{}<>\n]+)')"
)
"""Parameter of a shortcode, tag or list of attributes that is text for people."""
_MATH = re.compile(
    r"(?<![\\$])(?:\$\$(?:[^$`]|\\\$)+\$\$|\$`[^`\n]+`\$"
    # Pandoc's rule, by which prices are not formulas: no inner space, and no digit after the mark.
    r"|\$(?=[^\s$])(?:[^$\\`\n]|\\.|\n(?!\s*\n))*?(?<=[^\s\\])\$(?![\w$]))",
)
_TEMPLATE = r"\{\{(?:(?!\}\}).)*\}\}|\{%(?:(?!%\}).)*%\}"
_KEPT_LINE = re.compile(
    rf"(?:(?:{_TEMPLATE})\s*)+|{_ATTRIBUTES}|-+8<-+.*|\*\[[^\]]+\]:.*|(?i:\[\[?_?TOC_?\]?\])"
    r"|\\[A-Za-z]+(?:\[[^\]]*\]|\{[^{}]*\})*|<<< ?\S+.*|:{3,}.*|/{3,}(?:\s.*)?"
    r"|</?[A-Z]\w*[a-z][\w.]*(?:\s(?:[^<>{}]|\{.*\})*)?/?>"
    r"|import\s(?:.*\sfrom\s)?\s*['\"][^'\"]+['\"];?|export\s.*[;{(\[,=]",
)
_KEPT_BLOCKS = tuple(
    (re.compile(begin), end)
    for begin, end in (
        (r"\{%-? *(highlight|comment|mermaid|math|code\w*)\b", r"\{{%-? *end{}\b"),
        (
            r"\{\{[<%] *(highlight|mermaid|katex|math|code\w*)\b(?!.*/[>%]\}\})",
            r"\{{\{{[<%] */ *{}\b",
        ),
        (r"\\begin\{(\w+\*?)\}", r"\\end\{{{}\}}"),
        (r"(-+8<-+)$", "{}$"),
        (r"(import|export) (?:.* )?[{(\[]$", "^$"),
        (r"(<[A-Z]\w*[a-z][\w.]*)(?=[^>]*$)", ">$"),
    )
)
_TITLED = re.compile(
    r":{3,} ?\w[\w-]*(?:\[([^\[\]]+)\]| +([^\s:{\[][^{:]*?)) *(?:\{[^{}]*\})?"
    r"|:{3,} ?\{(?:admonition|card|dropdown|sidebar|tab-item|topic)\} +(.+)"
    r"|/{3,} *(?!html\b)[\w-]+ *\| *([^<].*)"
)
_ADMONITION = re.compile(
    r"(?:!!!|\?\?\?\+?) ?[\w-]+(?: +[\w-]+)*(?: +\"(.*)\")? *|===[!+]? *\"(.*)\" *"
)
_RULE_OF_TABLE = re.compile(r"-{2,}(?: +-{2,})+|-{10,}")
_ENDS_PARAGRAPH: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}


def masked(source: str) -> str:
    """Return a text of the same length in which marks to keep are masked.

    Args:
        source: text of a document, with line feeds only.
    """
    return _MASKS.sub(_mask, source)


def masked_marks(source: str) -> list[str]:
    """Return the marks that `masked` masks."""
    return [match[0] for match in _MASKS.finditer(source) if not match["footnote"]]


def _mask(match: re.Match[str]) -> str:
    if match["footnote"]:
        return match[0]
    sign = SHOWN if match["shown"] else UNSEEN
    return re.sub(r"(\n[ \t>]*)|.", lambda part: part[1] or sign, match[0])


@cache
def markdown_parser() -> MarkdownIt:
    """Return the parser of masked texts, which needs `SOURCE` and `ENDS` in its environment."""
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import backtick, image, link
    from mdit_py_plugins.deflist import deflist_plugin
    from mdit_py_plugins.dollarmath.index import math_block_dollar
    from mdit_py_plugins.footnote.index import footnote_def

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable("text_join")  # keeps escapes separate from text
    parser.use(deflist_plugin)
    block, inline = parser.block.ruler, parser.inline.ruler
    block.before("reference", "footnote_def", footnote_def, {"alt": ["paragraph", "reference"]})
    block.before("fence", "math_block", math_block_dollar(True, str), _ENDS_PARAGRAPH)
    block.before("fence", "kept_lines", _kept_lines, _ENDS_PARAGRAPH)
    block.before("fence", "admonition", _admonition, _ENDS_PARAGRAPH)
    for name, rule in (("link", link), ("image", image), ("backticks", backtick)):
        inline.at(name, partial(_noting, name, rule))
    inline.before("escape", "kept", partial(_noting, "kept", _kept))
    inline.after("image", "span", partial(_noting, "span", _span))
    for sign in (SHOWN, UNSEEN):
        parser.inline.add_terminator_char(sign)
    return parser


def _noting(kind: str, rule: Any, state: StateInline, silent: bool) -> bool:
    """Apply a rule and record the end of the construct that it found."""
    start = state.pos
    matched: bool = rule(state, silent)
    if matched and not silent:
        state.env[ENDS][state.src, kind, start] = state.pos
    return matched


def _kept(state: StateInline, silent: bool) -> bool:
    """Find a masked mark, or a formula."""
    sign = state.src[state.pos]
    if sign in (SHOWN, UNSEEN):
        end = state.pos
        while end < state.posMax and state.src[end] == sign:
            end += 1
    elif (match := _MATH.match(state.src, state.pos, state.posMax)) is not None:
        end = match.end()
    else:
        return False
    if not silent:
        token = state.push("kept", "", 0)
        token.content = state.src[state.pos : end]
    state.pos = end
    return True


_SPAN_END = re.compile(rf"{UNSEEN}+|\[[^\[\]\n]*\]|\((?=[^()\n]*[./#])[^()\n]+\)")


_HIGHLIGHT = re.compile(
    r"(==)(?=[^\s=])[^=\n]*(?<=[^\s=])==(?!=)"
    r"|(?<![\w~\\])(~)(?=[^\s~])[^~\n]*(?<=[^\s~])~(?![\w~])"  # GitHub's strikethrough
)


def _span(state: StateInline, silent: bool) -> bool:
    """Find [words]{.class}, ^[a note], ==words==, and links defined elsewhere: [words][name]."""
    if (match := _HIGHLIGHT.match(state.src, state.pos, state.posMax)) is not None:
        width = len(match[match.lastindex or 0])
        return _push_span(state, width, match.end() - width, match.end(), silent)
    start = state.pos
    words = start + (2 if state.src.startswith("^[", start) else 1)
    if state.src[words - 1] != "[":
        return False
    close = state.md.helpers.parseLinkLabel(state, words - 1)
    if close <= words:
        return False
    match = _SPAN_END.match(state.src, close + 1, state.posMax)
    if match is None and words == start + 1:
        return False
    end = close + 1 if match is None or words > start + 1 else match.end()
    return _push_span(state, words - start, close, end, silent)


def _push_span(state: StateInline, opening: int, close: int, end: int, silent: bool) -> bool:
    """Add a span and its content.

    Args:
        state: state of the parser, at the start of the span.
        opening: length of the mark that opens it.
        close: position of the mark that closes it.
        end: position after the closing mark.
        silent: true to move past the span without adding it.
    """
    if not silent:
        words, limit = state.pos + opening, state.posMax
        state.push("span_open", "span", 1).markup = state.src[state.pos : words]
        state.pos, state.posMax = words, close
        state.md.inline.tokenize(state)
        # [words][] means [words][words], so its translation is written as [other words][words].
        name = " ".join(state.src[words:close].split()) if state.src[close:end] == "][]" else ""
        state.push("span_close", "span", -1).content = state.src[close : end - 1] + name
        state.posMax = limit
    state.pos = end
    return True


def _line(state: StateBlock, number: int) -> str:
    """Return a line without masks and without the marks of its containers."""
    start, end = state.bMarks[number] + state.tShift[number], state.eMarks[number]
    source: str = state.env[SOURCE]
    return source[start:end].rstrip()


def _kept_lines(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Find lines that have no text except perhaps a title."""
    if state.is_code_block(start):
        return False
    last, left_out = _last_kept(state, start, end)
    if last is None:
        return False
    if not silent:
        token = state.push("kept_lines", "", 0)
        token.map, token.info = [start, last + 1], left_out
        _title(state, start, _TITLED)
        state.line = last + 1
    return True


def _last_kept(state: StateBlock, start: int, end: int) -> tuple[int | None, str]:
    """Return the last line of a block to keep, and the reason for keeping its words, if any."""
    from markdown_it.rules_block import table

    line = _line(state, start)
    for begin, ending in _KEPT_BLOCKS:
        if (match := begin.match(line)) is not None:
            closing = re.compile(ending.format(re.escape(match[1])))
            for number in range(start, end):
                if closing.search(_line(state, number), 0 if number > start else match.end()):
                    return number, ""
            if ending == "^$":  # a module ends before a blank line or at the end of the page
                return end - 1, ""
    if line.startswith("% "):  # the first lines of a Pandoc document hold its title
        return (start, "") if start < 3 and state.parentType == "root" else (None, "")
    if _KEPT_LINE.fullmatch(line):
        return start, ""
    if line.startswith(("|", "+-", "+=")) and (start == 0 or state.isEmpty(start - 1)):
        last = start
        while last + 1 < end and _line(state, last + 1).startswith(("|", "+")):
            last += 1
        is_table = any(table(state, number, end, True) for number in range(start, last))
        if line[0] == "+" or (last > start and not is_table):
            return last, "a table or a block of lines"
    if _is_simple_table(state, start, end):
        last = start
        while last + 1 < end and not state.isEmpty(last + 1):
            last += 1
        return last, "a table"
    return None, ""


def _is_simple_table(state: StateBlock, start: int, end: int) -> bool:
    """Return True if a table begins here whose columns are underlined with dashes."""
    if start + 1 >= end or state.isEmpty(start) or state.isEmpty(start + 1):
        return False
    first, second = _line(state, start), _line(state, start + 1)
    return ("  " in first and bool(_RULE_OF_TABLE.fullmatch(second)) and " " in second) or (
        bool(_RULE_OF_TABLE.fullmatch(first)) and "  " in second
    )


def _title(state: StateBlock, line: int, pattern: re.Pattern[str]) -> None:
    """Add the title of a directive, with its column in the line."""
    match = pattern.fullmatch(_line(state, line))
    if match is None or not match[match.lastindex or 0].strip() or not match.lastindex:
        return
    begin = state.bMarks[line] + state.tShift[line]
    first, last = (begin + offset for offset in match.span(match.lastindex))
    token = state.push("inline", "", 0)
    token.content, token.map, token.children = state.src[first:last], [line, line + 1], []
    token.meta = {"column": first - state.src.rfind("\n", 0, first) - 1}


def _admonition(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Find a block of MkDocs (!!! note, ??? tip, === "Tab") and its indented text."""
    if state.is_code_block(start) or not _ADMONITION.fullmatch(_line(state, start)):
        return False
    if silent:
        return True
    last = start + 1
    while last < end and (state.isEmpty(last) or state.sCount[last] >= state.blkIndent + 4):
        last += 1
    state.push("admonition_open", "div", 1).map = [start, last]
    _title(state, start, _ADMONITION)
    parent, limit = state.parentType, state.lineMax
    state.parentType, state.lineMax = "admonition", last
    state.blkIndent += 4
    state.md.block.tokenize(state, start + 1, last)
    state.blkIndent -= 4
    state.parentType, state.lineMax = parent, limit
    state.push("admonition_close", "div", -1)
    state.line = last
    return True
