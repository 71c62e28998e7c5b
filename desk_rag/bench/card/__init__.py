"""Serving models of published shapes on a graphics card with little memory."""
