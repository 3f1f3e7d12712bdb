// Who uses which MPI tags.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_TAGS_H_
#define CAPSTAN_PLUGINS_COMM_MPI_TAGS_H_

namespace capstan::mpi {

// On the world's communicator: notices, and above them the tags of groups that are being formed.
inline constexpr int kNoticeTag = 0;
inline constexpr int kFirstGroupTag = 1;
// On a group's communicators of exchanges.
inline constexpr int kPairwiseTag = 0;
// On a group's communicator of messages: the channel is the tag.

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_TAGS_H_
