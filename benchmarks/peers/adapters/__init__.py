"""How each system is driven, through its public interface alone. Run inside that system's own environment."""
