"""Answers while another program takes GPU memory and gives it back."""
