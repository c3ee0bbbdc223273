/* The floor of a transport: a C program on both ends of one TCP connection on the loopback.
 *
 *   echo serve                 prints its port; serves one connection at a time, for ever
 *   echo ping PORT SIZE COUNT  median seconds of a round trip of SIZE bytes
 *   echo send PORT SIZE COUNT  median seconds of SIZE bytes there and 1 byte back
 *   echo receive PORT SIZE COUNT            … of 1 byte there and SIZE bytes back
 *   echo THERE PORT BACK COUNT              … of THERE bytes there and BACK bytes back
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct call { uint64_t there, back; };

static char *area(uint64_t size) {
    char *memory = malloc(size);
    if (!memory) exit(3);
    memset(memory, 1, size); /* touched, as the device's memory is */
    return memory;
}

static void whole(int fd, char *at, uint64_t size, int out) {
    while (size) {
        ssize_t n = out ? send(fd, at, size, 0) : recv(fd, at, size, 0);
        if (n <= 0) exit(out ? 4 : 0);
        at += n;
        size -= n;
    }
}

static void no_delay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void answer(int fd) {
    struct call call;
    char *memory = area(128 << 20);
    no_delay(fd);
    for (;;) {
        whole(fd, (char *)&call, sizeof call, 0);
        whole(fd, memory, call.there, 0);
        whole(fd, memory, call.back, 1);
    }
}

static int serve(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof to;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&to, sizeof to) || listen(fd, 8)) return 2;
    getsockname(fd, (struct sockaddr *)&to, &size);
    printf("%d\n", ntohs(to.sin_port));
    fflush(stdout);
    for (;;) {
        int one = accept(fd, NULL, NULL);
        if (fork() == 0) answer(one);
        close(one);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int order(const void *a, const void *b) {
    double x = *(double *)a, y = *(double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "serve")) return serve();
    if (argc != 5) return 2;
    uint64_t size = strtoull(argv[3], NULL, 10);
    uint64_t up = strtoull(argv[1], NULL, 10); /* 0 for a word */
    int count = atoi(argv[4]), back = strcmp(argv[1], "send") != 0, there = strcmp(argv[1], "receive") != 0;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons(atoi(argv[2]));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) return 2;
    no_delay(fd);
    struct call call = {up ? up : there ? size : 1, back ? size : 1};
    if (call.there > size) size = call.there;
    char *memory = area(size), *message = area(sizeof call + size);
    double *took = calloc(count, sizeof *took);
    for (int i = 0; i < count; i++) {
        double start = now();
        memcpy(message, &call, sizeof call);
        if (call.there <= 4096) { /* one packet, as a careful program would */
            whole(fd, message, sizeof call + call.there, 1);
        } else {
            whole(fd, message, sizeof call, 1);
            whole(fd, memory, call.there, 1);
        }
        whole(fd, memory, call.back, 0);
        took[i] = now() - start;
    }
    qsort(took, count, sizeof *took, order);
    printf("%.9f\n", took[count / 2]);
    return 0;
}
