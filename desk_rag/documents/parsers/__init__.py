"""One parser per family of formats; they run in a child process that may crash."""
