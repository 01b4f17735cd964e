"""An iteration on one self-contained page: its metrics, how well calibrated it was, and its most informative trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

from components.predictor.metrics import reliability
from components.tree.forest import Forest
from components.tree.schema import Node

TREES = 12

PAGE = Environment(autoescape=True).from_string(
    """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<style>
  :root { color-scheme: light dark; --line: #8886; }
  body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
  table { border-collapse: collapse; margin: .5rem 2rem 1.5rem 0; } td, th { padding: .15rem .7rem; text-align: left; }
  td + td { font-variant-numeric: tabular-nums; } tr { border-bottom: 1px solid var(--line); }
  ul { list-style: none; border-left: 2px solid var(--line); padding-left: 1rem; margin: .1rem 0 .1rem .3rem; }
  .row { display: flex; flex-wrap: wrap; align-items: start; } .new > span { font-style: italic; }
  circle { fill: #2e8b57; } .good { color: #2e8b57; } .bad { color: #c0392b; } small { opacity: .7; }
</style>
<h1>{{ title }}</h1>
<div class="row">
{% for group, rows in groups.items() %}
  <table><tr><th colspan="2">{{ group }}</th></tr>
  {% for name, value in rows %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>{% endfor %}</table>
{% endfor %}
  <table><tr><th colspan="3">reliability at prompts and prefixes</th></tr>
  <tr><td colspan="3"><svg viewBox="-4 -4 108 108" width="200" role="img" aria-label="observed against predicted">
  <path d="M0 100 V0 H100 V100 Z M0 100 L100 0" fill="none" stroke="currentColor" stroke-opacity=".4"/>
  {% for predicted, observed, count in bins %}<circle cx="{{ 100 * predicted }}" cy="{{ 100 - 100 * observed }}" r="3"/>
  {% endfor %}</svg></td></tr>
  <tr><td>predicted</td><td>observed</td><td>rollouts</td></tr>
  {% for predicted, observed, count in bins %}
  <tr><td>{{ "%.2f"|format(predicted) }}</td><td>{{ "%.2f"|format(observed) }}</td><td>{{ count }}</td></tr>
  {% endfor %}</table>
</div>
<h2>Trees where predictions were most surprised</h2>
<p><small>v̂ is the predicted chance of success, +n the rollouts granted there; continuations are in italics.</small></p>
{% macro branch(node) %}
<li class="{{ 'new' if node.new }}"><span>{{ node.text }}</span>
  {% if node.outcome is not none %}<b class="{{ 'good' if node.outcome else 'bad' }}">{{ node.end }}</b>{% endif %}
  <small>{{ node.note }}</small>
  {% if node.children %}<ul>{% for child in node.children %}{{ branch(child) }}{% endfor %}</ul>{% endif %}</li>
{% endmacro %}
{% for tree in trees %}<ul>{{ branch(tree) }}</ul>{% endfor %}
</html>
"""
)


@dataclass
class Branch:
    """What the page shows of one node, with its children."""

    text: str
    note: str
    new: bool
    outcome: bool | None
    end: str
    children: list[Branch]


def iteration_report(title: str, line: dict[str, Any], forest: Forest) -> str:
    """The page as HTML.

    Args:
        title: Its heading.
        line: The iteration's metrics, flat names ``group/name``.
        forest: Its finished forest.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, value in line.items():
        group, _, name = key.rpartition("/")
        groups.setdefault(group or "run", []).append((name, "–" if value is None else f"{value:.4g}"))
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(forest.parent_N.tolist()):
        children.setdefault(parent, []).append(row)
    roots = sorted(children.get(-1, []), key=lambda row: -_surprise(forest.nodes[row]))[:TREES]
    trees = [_branch(forest, row, children) for row in roots]
    return PAGE.render(title=title, groups=groups, bins=reliability(forest), trees=trees)


def _surprise(root: Node) -> float:
    """|v̂ - V| of a prompt; 0 where either is unknown."""
    return 0.0 if root.v_hat is None or root.value is None else abs(root.v_hat - root.value)


def _branch(forest: Forest, row: int, children: dict[int, list[int]]) -> Branch:
    node = forest.nodes[row]
    text = node.observation if node.parent_id < 0 else f"{node.action} → {node.observation}"
    parts = [f"v̂ {node.v_hat:.2f}"] if node.v_hat is not None else []
    parts += [f"+{node.allocated}"] if node.allocated else []
    parts += [f"V {node.value:.2f}"] if node.value is not None and not node.is_terminal else []
    parts += [f"advantage {node.advantage:+.2f}"] if node.advantage is not None else []
    outcome = None if node.reward is None else node.reward > 0.5
    return Branch(
        text=text or "",
        note=", ".join(parts),
        new=bool(forest.is_counterfactual_N[row]),
        outcome=outcome,
        end="" if outcome is None else f"{'✓' if outcome else '✗'} {node.stop_reason}",
        children=[_branch(forest, child, children) for child in children.get(row, [])],
    )
