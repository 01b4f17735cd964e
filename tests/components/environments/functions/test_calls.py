"""Reading calls: the forms that are read, and hostile texts, none of which is run, hangs or becomes another call."""

from __future__ import annotations

import time

import pytest

from components.environments.functions.calls import MAX_CALLS, MAX_DEPTH, hermes, read_calls, read_turns, write_turns
from components.environments.parsing import Call, MalformedCall

PARAMETERS = {"cd": ["folder"], "mv": ["source", "destination"], "spotify.play": ["artist", "minutes"]}


def tool_call(arguments: str, name: str = "cd") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<think> x </think> [cd(folder="a"), mv("b", destination="c")]',
         [Call("cd", {"folder": "a"}), Call("mv", {"source": "b", "destination": "c"})]),
        ("```python\n[spotify.play('A', minutes=-2.5)]\n```",
         [Call("spotify.play", {"artist": "A", "minutes": -2.5})]),
        ("[f(x=[1, (2, 3)], y={'k': None}, z=True)]", [Call("f", {"x": [1, [2, 3]], "y": {"k": None}, "z": True})]),
        ("[cd('a', 'b')]", [Call("cd", {"folder": "a", "argument_1": "b"})]),
        (tool_call('{"folder": "a"}') + "\n" + tool_call("{}"), [Call("cd", {"folder": "a"}), Call("cd", {})]),
        ('Thought\nAction: cd\nAction Input: {"folder": "é木"}', [Call("cd", {"folder": "é木"})]),
        ('cd(folder="a")', [Call("cd", {"folder": "a"})]),  # as the leaderboard's decoder reads it, to the last line
        ("`mv('a', destination='b')`", [Call("mv", {"source": "a", "destination": "b"})]),
        ("cd(folder='a'), f()", [Call("cd", {"folder": "a"}), Call("f", {})]),
        ("[cd(folder='a'), cd(folder='b')", [Call("cd", {"folder": "a"}), Call("cd", {"folder": "b"})]),
        ("unknown(a=1)", [Call("unknown", {"a": 1})]),
        ("[f(x=document, y=true)]", [Call("f", {"x": "document", "y": "true"})]),
        ("[f(x=10 / 4, y=2**10 - 1, z='a' + 'b', w=-3)]", [Call("f", {"x": 2.5, "y": 1023, "z": "ab", "w": -3})]),
        ("[f(x=g(a=1), y=g(1), z=a[0], w=...)]",
         [Call("f", {"x": {"g": {"a": 1}}, "y": "g(1)", "z": "a[0]", "w": "..."})]),
        ("[cd(folder=__import__('os').system('true'))]", [Call("cd", {"folder": "__import__('os').system('true')"})]),
        ("[cd(folder=(lambda: 1)())]", [Call("cd", {"folder": "(lambda: 1)()"})]),
        ('{"name": "cd", "parameters": {"folder": "a"}}; {"name": "f", "parameters": {}}',
         [Call("cd", {"folder": "a"}), Call("f", {})]),
        (tool_call('{"folder": "a\n\tb"}'), [Call("cd", {"folder": "a\n\tb"})]),
        ("f(x) is a function, print(1) a call.", []),
        ("Note(s): done.", []),
        ("I used [ls()] before.", []),  # no function of this name is known
        ("[1] is a footnote, f(x) a function.", []),
        ("[Note (1)] It is done.", []),
        ("All done (see above).", []),
        ("", []),
    ],
)  # fmt: skip
def test_forms_of_calls(text, calls):
    assert list(read_calls(text, PARAMETERS)) == calls


def test_what_is_written_is_read_again():
    calls = [Call("f", {"x": [1, 2.5, None, "é'\"\n"], "y": {"k": [True]}}), Call("g", {})]
    assert list(read_calls(hermes(calls), {})) == calls
    assert read_turns(write_turns([[calls, calls], []])) == [[calls, calls], []]


HOSTILE = {
    "cut": '<tool_call>{"name": "cd", "arguments": {"fol',
    "cut list": "[cd(folder='a'), mv(",
    "no name": '<tool_call>{"arguments": {}}</tool_call>',
    "name is a list": '<tool_call>{"name": ["cd"], "arguments": {}}</tool_call>',
    "nested brackets in JSON": tool_call("[" * 60_000),
    "nested objects": tool_call('{"a":' * 9_000 + "1" + "}" * 9_000),
    "nested a little too deep": tool_call('{"a": ' + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "}"),
    "nested brackets in a list": "[f(x=" + "[" * 30_000,
    "nested parentheses": "[f(x=" + "(" * 150 + "1" + ")" * 150 + ", y=" + "(" * 30_000,
    "chain of signs": "[f(x=" + "-" * 60_000 + "1)]",
    "chain of sums": "[f(x=1" + "+1" * 30_000 + ")]",
    "chain of attributes": "[f" + ".a" * 30_000 + "(x=g())]",
    "chain of calls": "[f" + "()" * 30_000 + "]",
    "call of an attribute of a value": "[cd(), ().__class__.__base__.__subclasses__()]",
    "call of a call": "[cd()(folder='a')]",
    "comprehension": "[cd(folder=[x for x in range(10**9)])]",
    "comprehension of calls": "[cd(folder=x) for x in 'ab']",
    "f-string": "[cd(folder=f'{1+1}')]",
    "cut without brackets": "cd(folder='a'",
    "calls that text follows": "[cd(folder='a')] and that is all",
    "calls in the middle of a text": "I did [cd(folder='a')].",
    "a known call that text follows": "cd(folder='a') is what I do",
    "attribute of a name": "[cd(folder=a.b)]",
    "lambda": "[cd(folder=lambda: 1)]",
    "not": "[cd(folder=not True)]",
    "power": "[cd(folder=10**10**8)]",
    "powers multiplied": "[cd(folder=" + "*".join(["9**3000"] * 5_000) + ")]",
    "large float": "[cd(folder=2**1e300)]",
    "division by zero": "[cd(folder=1/0)]",
    "complex power": "[cd(folder=(-8)**0.5)]",
    "unpacked object": "[cd(folder={**a})]",
    "repetition": "[cd(folder='a' * 10**10)]",
    "walrus": "[cd(folder=(a := 1))]",
    "stars": "[cd(*['a'])]",
    "double stars": "[cd(**{'folder': 'a'})]",
    "same name twice": "[cd('a', folder='b')]",
    "bytes": "[cd(folder=b'a')]",
    "set": "[cd(folder={'a'})]",
    "complex number": "[cd(folder=1+2j)]",
    "key that is no text": "[cd(folder={1: 2})]",
    "not a number": tool_call('{"folder": NaN}'),
    "infinity": tool_call('{"folder": 1e999}'),
    "infinity in a list": "[cd(folder=-1e999)]",
    "half a surrogate pair": tool_call(r'{"folder": "\ud800"}'),
    "surrogate in a key": tool_call(r'{"\ud800": 1}'),
    "surrogate in a name": tool_call("{}", name=r"\ud800"),
    "many digits in JSON": tool_call('{"folder": ' + "9" * 60_000 + "}"),
    "many digits in a list": "[cd(folder=" + "9" * 60_000 + ")]",
    "null character": "[cd(folder='a\x00b\n')]",
    "too many calls": tool_call("{}") * (MAX_CALLS + 1),
    "too many calls in a list": "[" + "cd()," * (MAX_CALLS + 1) + "]",
    "100,000 calls": tool_call("{}") * 100_000,
    "100,000 calls in a list": "[" + "cd()," * 100_000 + "]",
    "100,000 opened calls": "<tool_call>" * 100_000,
    "a megabyte of text": "a" * 2**20,
    "a thought that does not end": "<think>" * 2_000,
    "many ends of a thought": "</think>" * 8_000,
    "many actions without an input": "Action: a\n" * 6_000,
    "an action of blanks": "Action:" + " " * 60_000,
    "an action of lines": "Action: a" + "\n" * 60_000,
    "an action with a long name": "Action: " + "a" * 60_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_malformed_at_once(text):
    start = time.process_time()
    with pytest.raises(MalformedCall):
        read_calls(text, PARAMETERS)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    "text",
    ["Final Answer:" * 5_000, "[" * 60_000, "<" * 60_000, "f(" * 30_000, "[a " * 20_000, "a" * 60_000 + "("],
    ids=["answers", "brackets", "angles", "bare calls", "words", "a long name"],
)  # fmt: skip
def test_hostile_texts_without_a_call_are_answers_at_once(text):
    start = time.process_time()
    assert read_calls(text, PARAMETERS) == ()
    assert time.process_time() - start < 1.0
