"""What templates of this app call."""
