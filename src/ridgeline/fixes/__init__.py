"""What a specialist would try on a program: each change put on from outside, and written into its
source."""
