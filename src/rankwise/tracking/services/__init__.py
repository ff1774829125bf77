"""Tracking services: MLflow, Weights & Biases, TensorBoard, and the way of numbers to them."""
