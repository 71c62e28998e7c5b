"""Tests of the screens beside the chat."""
