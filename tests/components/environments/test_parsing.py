"""Turns of chat models: what can be read is read, what cannot is an error, and nothing is ever made up."""

from __future__ import annotations

import json
import string
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.environments.parsing import Call, MalformedCall, parse_turn

PLAIN = {"search": "query"}


def call(**arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'search', 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "thought", "queries", "left"),
    [
        ("<think>\nwho?\n</think>\n\n" + call(query="Émile"), "who?", ["Émile"], ""),
        ("who?</think>" + call(query="x"), "who?", ["x"], ""),  # the template opened the thought
        (call(query="x") + "\n" + call(query="y"), "", ["x", "y"], ""),
        ("I look it up. " + call(query="木 \U0001f600 \u2028"), "", ["木 \U0001f600 \u2028"], "I look it up."),
        ("<think></think>Paris", "", [], "Paris"),
        ("Paris", "", [], "Paris"),
        ("", "", [], ""),
        ("<think>x</think>\nFinal Answer: Paris\nFrance", "x", [], "Paris\nFrance"),
        ("I know.\nFinal Answer: Paris", "I know.", [], "Paris"),
        ("<think></think>" + call(query="</tool_call> </think> <tool_call>"), "", ["</tool_call> </think> <tool_call>"],
         ""),
        ('<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"x\\"}"}</tool_call>', "", ["x"], ""),
        ('<tool_call>{"name": "search", "parameters": {"query": "x"}}</tool_call>', "", ["x"], ""),
        ('<tool_call>{"arguments": {"query": "x"}, "name": "search", "id": 7}</tool_call>', "", ["x"], ""),
        ('Thought: who?\nAction: search\nAction Input: {"query": "x"}', "Thought: who?", ["x"], ""),
        ("Action: search  \n\nAction Input:\n{\n  \"query\": \"x\"\n}\n", "", ["x"], ""),
        ('<tool_call>{"name": "search", "arguments": {"query": "a\nb\tc"}}</tool_call>', "", ["a\nb\tc"], ""),
        ('Action: search\nAction Input: {"query": "a\n\tb"}', "", ["a\n\tb"], ""),
        ('{"name": "search", "parameters": {"query": "x"}}', "", ["x"], ""),
        ('<think>so</think>\n\n{"type": "function", "name": "search", "parameters": {"query": "x"}}', "so", ["x"], ""),
        ('<|python_tag|>{"name": "search", "parameters": {"query": "x"}}<|eom_id|>', "", ["x"], ""),
        ('I look. <|python_tag|>{"name": "search", "parameters": {"query": "x"}}; '
         '{"name": "search", "parameters": {"query": "y"}}', "", ["x", "y"], "I look."),
        ('[{"name": "search", "arguments": {"query": "x"}}, {"name": "search", "arguments": {"query": "y\n"}}]',
         "", ["x", "y\n"], ""),
        ('```json\n{"name": "search", "parameters": {"query": "x"}}\n```', "", ["x"], ""),
        ('I look:\n```json\n[{"name": "search", "parameters": {"query": "x"}}]\n```', "", ["x"], "I look:"),
        ('{"parameters": {"query": "x"}, "name": "search"}', "", ["x"], ""),
        ('{"type": "function", "function": {"name": "search", "arguments": "{\\"query\\": \\"x\\"}"}}', "", ["x"], ""),
        ("{1, 2}", "", [], "{1, 2}"),
        ('{"x": 1}', "", [], '{"x": 1}'),
        ('The key "name" and its "parameters"', "", [], 'The key "name" and its "parameters"'),
    ],
)  # fmt: skip
def test_forms_that_are_read(text, thought, queries, left):
    turn = parse_turn(text)
    assert (turn.thought, [c.arguments["query"] for c in turn.calls], turn.text) == (thought, queries, left)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "search", "arguments": {"query": "abc',
        '<tool_call>{"name": "search", "arguments": {"query": "abc"}}',
        '<tool_call>{"name": "search", "arguments": {"query": "abc"}}</tool_cal',
        '{"name": "search", "arguments": {"query": "abc"}}</tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>search(query='x')</tool_call>",
        "<tool_call>" + call(query="x") + "</tool_call>",
        '<tool_call>["search", {"query": "x"}]</tool_call>',
        '<tool_call>{"name": "search"}</tool_call>',
        '<tool_call>{"name": "search", "arguments": null}</tool_call>',
        '<tool_call>{"name": "search", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"x\\"} and"}</tool_call>',
        '<tool_call>{"name": "search", "arguments": ["x"]}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {}, "parameters": {"query": "x"}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {"query": "x", "query": "y"}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {"query": NaN}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {"query": "x"}}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {"query": "x"}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {"query": "x"}} {"name": "search"}</tool_call>',
        "<think>I need to search " + call(query="x"),
        "<think>a<think>b</think>c</think>Paris",
        "<think>a</think><think>b",
        call(query="x") + "\nFinal Answer: Paris",
        "Action: search\nAction Input:",
        'Action: search\nAction Input: {"query": "ab',
        'Action: search\nAction Input: {"query": "x"}\nObservation: made up',
        'Action: search\nAction Input: {"query": "x"}\nFinal Answer: made up',
        "Action: search",
        "Action Input: x",
        "Action: two words\nAction Input: {}",
        "Action: search\nAction Input: x",
        "<tool_call>" * 50_000,
        "<tool_call>" + "[" * 100_000,
        '{"name": "search", "parameters": {"query": "ab',
        '{"name": "search", "parameters": {"query": "x"}',
        '{"name": "search", "parameters": {"query": "x"}} and more',
        '{"name": "search"}',
        '{"type": "function"}',
        "{'name': 'search', 'parameters': {}}",
        'I look. {"name": "search", "arguments": {"que',
        '[{"name": "search", "parameters": {"query": "x"}}',
        "<|python_tag|>",
        "<|python_tag|>[]",
        "<|python_tag|>print(1)",
        call(query="x") + '<|python_tag|>{"name": "search", "parameters": {"query": "y"}}',
        '<tool_call>{"name": "search", "arguments": {"query": ' + "9" * 5000 + "}}</tool_call>",
    ],
)
def test_what_cannot_be_read_is_an_error_never_a_call(text):
    with pytest.raises(MalformedCall, match=r"\w"):  # the reason is for the policy
        parse_turn(text)


def test_call_inside_the_thought_is_thought():
    turn = parse_turn(f"<think>maybe {call(query='x')}</think>Paris")
    assert (turn.calls, turn.text) == ((), "Paris")
    assert "<tool_call>" in turn.thought


@pytest.mark.parametrize(
    ("body", "query"),
    [("Émile, or else", "Émile, or else"), ('"quoted"', "quoted"), ('a "b"', 'a "b"'), ("two\nlines", "two\nlines")],
)  # fmt: skip
def test_plain_input_of_a_tool_with_one_argument(body, query):
    assert parse_turn(f"Action: search\nAction Input: {body}", PLAIN).calls == (Call("search", {"query": query}),)


@pytest.mark.parametrize(
    "body", ["", '{"query": "ab', "[1", "x\nObservation: made up", "x\nAction: search\nAction Input: y", '"a" and "b"']
)
def test_plain_input_that_is_cut_or_runs_on_is_an_error(body):
    with pytest.raises(MalformedCall):
        parse_turn(f"Action: search\nAction Input: {body}", PLAIN)


def test_plain_input_is_for_the_tools_that_take_it():
    with pytest.raises(MalformedCall):
        parse_turn("Action: delete\nAction Input: everything", PLAIN)


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.lists(st.text()), st.none()), max_size=4))
def test_any_arguments_survive_the_form(arguments):
    assert parse_turn(call(**{"query": "q"} | {f"a{k}": v for k, v in arguments.items()})).calls[0].arguments == {
        "query": "q"
    } | {f"a{k}": v for k, v in arguments.items()}


@settings(deadline=None)
@given(st.text(), st.integers(0, 200))
def test_a_cut_call_is_never_executed(query, cut):
    text = call(query=query)
    with pytest.raises(MalformedCall):
        parse_turn(text[: len("<tool_call>") + cut % (len(text) - len("<tool_call>"))])


@settings(deadline=None)
@given(st.text(alphabet=string.printable + "<>{}", max_size=300))
def test_any_text_is_a_turn_or_an_error(text):
    try:
        turn = parse_turn(text, PLAIN)
    except MalformedCall:
        return
    assert all(isinstance(c.arguments, dict) for c in turn.calls)


@pytest.mark.parametrize(
    "text",
    ["<think>" * 10**5, "</think>" * 10**5, "Action: " * 10**5, "Action:" + " " * 10**6, "Action: a\n" + "\n" * 10**6,
     "\n" * 10**6, "<tool_call>{" * 10**5, (call(query="x") + "\n") * 10**4, "Final Answer:" * 10**5,
     '{"name": ' * 10**5, '{"name": "a", "parameters": {}};' * 10**4, "`" * 10**6, "[" + " " * 10**6, "{" + " " * 10**6,
     '{"name":"a","parameters":' + " " * 10**6, '<|python_tag|>{"name"' + " `" * 10**5, "<|python_tag|>" * 10**5],
    ids=lambda text: repr(text[:14]),
)  # fmt: skip
def test_long_texts_take_no_long_time(text):
    start = time.process_time()
    with suppress(MalformedCall):
        parse_turn(text, PLAIN)
    assert time.process_time() - start < 1.0
