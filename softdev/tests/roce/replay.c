/* Runs a fuzzer's target on every file of some directories, without a fuzzer: the corpus as an ordinary
 * test. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

enum { MOST = 1 << 16 };

static int run(const char *directory, const char *name)
{
    char path[4096];
    FILE *file;
    uint8_t *data = malloc(MOST);

    snprintf(path, sizeof path, "%s/%s", directory, name);
    file = fopen(path, "rb");
    if (!file || !data) {
        perror(path);
        exit(1);
    }
    const size_t size = fread(data, 1, MOST, file);
    fclose(file);
    /* Allocated at the exact size, so that reads beyond the end are detected. */
    uint8_t *exact = realloc(data, size ? size : 1);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

int main(int argc, char **argv)
{
    int count = 0;

    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        DIR *directory = opendir(argv[i]);
        if (!directory) {
            perror(argv[i]);
            return 1;
        }
        for (const struct dirent *entry; (entry = readdir(directory));)
            if (entry->d_name[0] != '.')
                count += run(argv[i], entry->d_name);
        closedir(directory);
    }
    printf("%d inputs\n", count);
    return count ? 0 : 1;
}
