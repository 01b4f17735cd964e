"""Allocation without a language model: plan a budget before renting a GPU."""

from components.simulation.population import Population
from components.simulation.predictor import NoisyPredictor
from components.simulation.run import simulate

__all__ = ["NoisyPredictor", "Population", "simulate"]
