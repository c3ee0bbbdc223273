/* The floor of a transport: a C program on both ends of one TCP connection on the loopback.
 *
 *   echo serve                 prints its port; serves one connection at a time, for ever
 *   echo ping PORT SIZE COUNT  median seconds of a round trip of SIZE bytes
 *   echo send PORT SIZE COUNT  median seconds of SIZE bytes there and 1 byte back
 *   echo receive PORT SIZE COUNT            … of 1 byte there and SIZE bytes back
 *   echo THERE PORT BACK COUNT              … of THERE bytes there and BACK bytes back
 *   echo relay PORT            prints its port; passes connections on to PORT, by splice alone
 *
 * A negative PORT is a descriptor: of a connection that is open.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
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

static int listening(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof to;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&to, sizeof to) || listen(fd, 8)) exit(2);
    getsockname(fd, (struct sockaddr *)&to, &size);
    printf("%d\n", ntohs(to.sin_port));
    fflush(stdout);
    return fd;
}

static int connected(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) exit(2);
    no_delay(fd);
    return fd;
}

static int serve(void) {
    int fd = listening();
    for (;;) {
        int one = accept(fd, NULL, NULL);
        if (fork() == 0) answer(one);
        close(one);
    }
}

static void *passed_on(void *pair) {
    int from = ((int *)pair)[0], to = ((int *)pair)[1], pipes[2];
    const size_t most = 1 << 18;
    if (pipe(pipes) || fcntl(pipes[1], F_SETPIPE_SZ, most) < 0) exit(5);
    for (ssize_t n; (n = splice(from, NULL, pipes[1], NULL, most, 0)) > 0;)
        for (ssize_t done; n > 0; n -= done)
            if ((done = splice(pipes[0], NULL, to, NULL, n, 0)) <= 0) goto end;
end:
    shutdown(to, SHUT_WR);
    close(pipes[0]);
    close(pipes[1]);
    return NULL;
}

static void *relayed(void *pair) {
    int *there = pair, back[2] = {there[1], there[0]};
    pthread_t other;
    if (pthread_create(&other, NULL, passed_on, back)) exit(5);
    passed_on(there);
    pthread_join(other, NULL);
    close(there[0]);
    close(there[1]);
    free(pair);
    return NULL;
}

static int relay(int port) {
    int fd = listening();
    for (;;) {
        int *pair = malloc(2 * sizeof *pair);
        pthread_t thread;
        pair[0] = accept(fd, NULL, NULL);
        no_delay(pair[0]);
        pair[1] = connected(port);
        if (pthread_create(&thread, NULL, relayed, pair) || pthread_detach(thread)) return 5;
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
    if (argc == 3 && !strcmp(argv[1], "relay")) return relay(atoi(argv[2]));
    if (argc != 5) return 2;
    uint64_t size = strtoull(argv[3], NULL, 10);
    uint64_t up = strtoull(argv[1], NULL, 10); /* 0 for a word */
    int count = atoi(argv[4]), back = strcmp(argv[1], "send") != 0, there = strcmp(argv[1], "receive") != 0;
    int port = atoi(argv[2]), fd = port < 0 ? -port : connected(port);
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
