"""Allocation without a language model: plan a budget before renting a GPU."""

from components.simulation.population import Population
from components.simulation.predictor import NoisyPredictor
from components.simulation.run import simulate
from components.simulation.sweep import Cell, sweep

__all__ = ["Cell", "NoisyPredictor", "Population", "simulate", "sweep"]
