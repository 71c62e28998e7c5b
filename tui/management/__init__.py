"""Data and changes of the screens beside the chat: the library, the cache, the settings, the first run."""
