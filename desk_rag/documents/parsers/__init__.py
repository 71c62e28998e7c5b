"""The parsers, one module per family of formats; they run in a child process (`python -m desk_rag.parsers`).

Each parser turns bytes or text into `building.Parsed`. None of them opens a file, knows a path, or follows a link.
"""
