"""What is written, by whom, and how it comes back."""
