"""What differs between model servers, behind one small interface."""
