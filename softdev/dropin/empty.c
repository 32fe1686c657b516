/*
 * Nothing: of the libraries that only name others, and of those that stand where no real library is installed.
 */
extern int softdev_dropin_has_nothing;
