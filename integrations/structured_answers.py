"""Parsers of structured answers that tell a whole answer from one that was cut off.

LangChain's own close what is open: an answer that ran into its limit of tokens in the middle of a
word would pass for a whole one.
"""

from __future__ import annotations

from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import (
    BaseOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
)
from langchain_core.outputs import Generation
from langchain_core.utils.pydantic import is_basemodel_subclass


def answer_parser(schema: dict[str, Any] | type | None) -> BaseOutputParser[Any]:
    """The parser of answers in the form of a schema; JSON where there is none."""
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return _WholePydantic(pydantic_object=schema)
    return _WholeJson()


class _WholeJson(JsonOutputParser):
    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        _check(result, partial)
        return super().parse_result(result, partial=partial)


class _WholePydantic(PydanticOutputParser[Any]):
    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        _check(result, partial)
        return super().parse_result(result, partial=partial)


def _check(result: list[Generation], partial: bool) -> None:
    message = getattr(result[0], "message", None)
    metadata = getattr(message, "response_metadata", {})
    if not partial and metadata.get("finish_reason") == "length":
        raise OutputParserException(
            "The answer was cut off before its JSON was complete: it ran into its limit of tokens. "
            "Give the model more max_tokens, or a schema with shorter fields (maxLength).",
            llm_output=result[0].text,
        )
