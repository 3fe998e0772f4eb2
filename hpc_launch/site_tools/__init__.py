"""Operations on site profiles: learn, check, compare, share, and find where a profile differs from its cluster."""
