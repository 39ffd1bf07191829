"""Which reader reads which format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.finance.bill_messages import ImportFile, SourceKind
from gateway.finance.errors import UnreadableSource
from gateway.finance.sources import anthropic, focus, generic, openai, openrouter
from gateway.finance.sources.rows import SourceFile

READERS: Mapping[SourceKind, Callable[[bytes, str], SourceFile]] = {
    SourceKind.OPENAI_COSTS: openai.read_costs,
    SourceKind.OPENAI_USAGE: openai.read_usage,
    SourceKind.ANTHROPIC_COSTS: anthropic.read_costs,
    SourceKind.ANTHROPIC_USAGE: anthropic.read_usage,
    SourceKind.OPENROUTER_ACTIVITY: openrouter.read_activity,
    SourceKind.OPENROUTER_GENERATIONS: openrouter.read_generations,
    SourceKind.AWS_FOCUS: focus.read_focus,
    SourceKind.AZURE_FOCUS: focus.read_focus,
    SourceKind.FOCUS: focus.read_focus,
}
"""Readers of files that need no mapping."""


def read_source(order: ImportFile) -> SourceFile:
    """Read a file; the result has no problems.

    Raises:
        UnreadableSource: Anything in it is wrong, or it holds nothing at all.
    """
    if order.source is SourceKind.CSV:
        if order.mapping is None:
            raise UnreadableSource(
                [f"{order.file_name}: a CSV file needs a mapping file that names its columns"]
            )
        file = generic.read_mapped(
            order.content, order.file_name, order.mapping, order.mapping_name
        )
    elif order.mapping is not None:
        raise UnreadableSource(
            [f"{order.mapping_name}: only the source csv takes a mapping, not {order.source}"]
        )
    else:
        file = READERS[order.source](order.content, order.file_name)
    if file.problems:
        raise UnreadableSource(file.problems)
    if not file.days:
        raise UnreadableSource(
            [f"{order.file_name}: holds nothing of {order.source} ({file.left_out} rows left out)"]
        )
    return file
