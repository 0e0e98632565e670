/* dlopen and dlclose in a loop: the same addresses hold other code each time. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    long sum = 0;
    if (argc < 3) return 1;
    for (int i = 0; i < 300; i++) {
        void *library = dlopen(argv[1 + i % 2], RTLD_NOW);
        if (!library) {
            puts(dlerror());
            return 2;
        }
        int (*plugin)(int) = (int (*)(int))dlsym(library, "plugin");
        for (int j = 0; j < 50; j++) sum += plugin(j);
        dlclose(library);
    }
    printf("sum %ld\n", sum);
    printf("still loaded: %d\n", dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != NULL);
    void *math = dlopen("libm.so.6", RTLD_LAZY);
    double (*cosine)(double) = (double (*)(double))dlsym(math, "cos");
    printf("cos 0 is %.1f\n", cosine(0));
    return 0;
}
