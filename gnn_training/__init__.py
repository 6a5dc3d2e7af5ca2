"""Train a graph-coloring network and export it as one ONNX file. The door is `python -m gnn_training`."""

__version__ = "0.2.0"
