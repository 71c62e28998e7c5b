"""What stands on a screen. Each widget takes plain values and posts messages; none knows the backend."""
