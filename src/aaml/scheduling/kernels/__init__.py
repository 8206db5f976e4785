"""Compiled rules of placing pods: fits, devices, scores; one truth for the engine, heuristics and features."""
