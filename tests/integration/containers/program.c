/* The program of the tests' images: commands of a function's or an attacker's, separated by ",". */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

static int result(const char *what, int failed) {
    printf("%s: %s\n", what, failed ? strerror(errno) : "done");
    return 0;
}

static int writes(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT, 0644);
    return result(path, file < 0 || write(file, "x", 1) != 1);
}

static int copies(const char *from, const char *folder) {
    char data[4096], to[4096];
    int in = open(from, O_RDONLY);
    ssize_t size = read(in, data, sizeof data);
    snprintf(to, sizeof to, "%s/copy", folder);
    int out = open(to, O_WRONLY | O_CREAT, 0644);
    return size < 0 || write(out, data, size) != size;
}

static int connects(const char *address, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    inet_pton(AF_INET, address, &to.sin_addr);
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    return result("connect", connect(stream, (struct sockaddr *)&to, sizeof to));
}

static int lists(const char *folder) {
    struct dirent *entry;
    DIR *all = opendir(folder);
    while (all && (entry = readdir(all)))
        puts(entry->d_name);
    return all == NULL;
}

static int forks(void) {
    int made = 0;
    while (made < 100000) {
        int child = fork();
        if (child == 0) {
            pause();
            return 0;
        }
        if (child < 0)
            break;
        made++;
    }
    printf("%d children\n", made);
    return 0;
}

static int status(void) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "Uid", 3) || !strncmp(line, "Cap", 3) || !strncmp(line, "NoNew", 5) ||
            !strncmp(line, "Seccomp:", 8))
            fputs(line, stdout);
    return 0;
}

static void finishes(int number) {
    sleep(1);
    _exit(number == SIGTERM ? 7 : 1);
}

static int waits(void (*on_term)(int)) {
    signal(SIGTERM, on_term);
    puts("waiting");
    fflush(stdout);
    for (;;)
        pause();
}

static int does(char **words) {
    const char *what = words[1];
    if (!strcmp(what, "env"))
        for (char **one = environ; *one; one++)
            puts(*one);
    if (!strcmp(what, "exit"))
        exit(atoi(words[2]));
    if (!strcmp(what, "write"))
        return writes(words[2]);
    if (!strcmp(what, "copy"))
        return copies(getenv("INPUT_FILE_PATH"), getenv("TMP_OUTPUT_DIR"));
    if (!strcmp(what, "connect"))
        return connects(words[2], words[3]);
    if (!strcmp(what, "list"))
        return lists(words[2]);
    if (!strcmp(what, "fork"))
        return forks();
    if (!strcmp(what, "status"))
        return status();
    if (!strcmp(what, "mount"))
        return result("mount", mount("none", "/tmp", "tmpfs", 0, NULL));
    if (!strcmp(what, "wait"))
        return waits(SIG_DFL);
    if (!strcmp(what, "ignore"))
        return waits(SIG_IGN);
    if (!strcmp(what, "finish"))
        return waits(finishes);
    while (!strcmp(what, "memory"))
        memset(malloc(1 << 20), 1, 1 << 20);
    return 0;
}

int main(int count, char **words) {
    int failed = 0;
    for (int at = 0; at < count - 1; at++)
        if (at == 0 || !strcmp(words[at], ",")) {
            failed |= does(words + at);
            puts(",");
        }
    fflush(stdout);
    return failed;
}
