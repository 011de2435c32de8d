/* Copyright 2026 The USER authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * For LD_PRELOAD: CAN sockets become AF_UNIX sockets of an emulated bus, so that a program that
 * speaks SocketCAN runs unchanged on a machine without CAN. The socket of interface can0 is
 * $USER_CAN_FOLDER/can0; one datagram is one struct can_frame. An interface without a socket is
 * an interface that does not exist (ENODEV). A receive filter set after bind goes to the bus as a
 * datagram of 8 bytes, the first struct can_filter.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FDS 4096
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define IS_CAN(fd) ((fd) >= 0 && (fd) < FDS && can[fd].open)

static struct { char open, bound, interface[IFNAMSIZ]; } can[FDS];

static struct sockaddr_un bus(int fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *folder = getenv("USER_CAN_FOLDER");
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", folder ? folder : ".",
             can[fd].interface);
    return address;
}

int socket(int domain, int type, int protocol)
{
    if (domain != AF_CAN)
        return NEXT(socket)(domain, type, protocol);
    int fd = NEXT(socket)(AF_UNIX, SOCK_SEQPACKET | (type & (SOCK_NONBLOCK | SOCK_CLOEXEC)), 0);
    if (fd >= 0 && fd < FDS) {
        memset(&can[fd], 0, sizeof can[fd]);
        can[fd].open = 1;
    }
    return fd;
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (!IS_CAN(fd) || request != SIOCGIFINDEX)
        return NEXT(ioctl)(fd, request, argument);
    struct ifreq *wanted = argument;
    memcpy(can[fd].interface, wanted->ifr_name, IFNAMSIZ - 1);
    struct sockaddr_un address = bus(fd);
    if (access(address.sun_path, F_OK)) {
        errno = ENODEV;
        return -1;
    }
    wanted->ifr_ifindex = 1;
    return 0;
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    if (!IS_CAN(fd))
        return NEXT(bind)(fd, address, length);
    struct sockaddr_un to = bus(fd);
    int result = connect(fd, (const struct sockaddr *)&to, sizeof to);
    can[fd].bound = result == 0;
    return result;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    if (!IS_CAN(fd) || level == SOL_SOCKET)
        return NEXT(setsockopt)(fd, level, name, value, length);
    if (level == 101 && name == 1 && can[fd].bound && length >= 8) /* CAN_RAW_FILTER */
        return send(fd, value, 8, MSG_NOSIGNAL) == 8 ? 0 : -1;
    return 0;
}

int close(int fd)
{
    if (IS_CAN(fd))
        can[fd].open = 0;
    return NEXT(close)(fd);
}
