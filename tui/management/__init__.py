"""What the screens beside the chat show and change: the library, the cache, the settings, the first run."""
