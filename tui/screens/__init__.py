"""What fills the whole terminal."""
