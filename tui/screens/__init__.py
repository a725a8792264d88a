"""The screens of a case and the dialogs on top of them."""
