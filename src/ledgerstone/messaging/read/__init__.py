"""Facts and checks of messaging for `status` and `doctor`."""
