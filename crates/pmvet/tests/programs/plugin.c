/* A library that the loader program loads and drops again. */
int counter = VALUE;
static int *mine;
__attribute__((constructor)) static void loaded(void) { mine = &counter; }
int plugin(int x) { return x * VALUE + (*mine)++; }
