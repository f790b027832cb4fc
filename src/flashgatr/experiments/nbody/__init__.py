"""Gravity among a star and its planets (section 4.1 and appendix C.1 of the paper)."""
