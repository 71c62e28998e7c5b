"""Screens that fill the whole terminal."""
