"""The rules of placing pods in compiled code, shared by the engine, the heuristics and the features."""
